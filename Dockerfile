# The sandbox image: the agent and nothing else. `sandboxctl` makes it from this file and the agent
# that it carries, as an archive that the engine loads; nothing is pulled.
FROM scratch
COPY agent /.sandbox/agent
ENTRYPOINT ["/.sandbox/agent"]
