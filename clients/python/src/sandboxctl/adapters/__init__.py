"""Adapters to frameworks of agents: one module for each, with what the framework asks for in its own words."""
