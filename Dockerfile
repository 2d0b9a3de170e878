# The sandbox image: the agent and nothing else. `sandboxctl` builds it through the engine's API
# from this file and the agent that it carries; nothing is pulled.
FROM scratch
COPY agent /.sandbox/agent
ENTRYPOINT ["/.sandbox/agent"]
