"""What hostile code tries first: run it in a sandbox, where each attempt fails."""

import os
import socket
import stat
import subprocess


def metadata_service():
    socket.create_connection(("169.254.169.254", 80), timeout=3)


def set_uid_program():
    open("shell", "wb").close()
    os.chmod("shell", 0o4755)


def disk_device():
    os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(254, 0))


def thousand_processes():
    started = []
    try:
        for _ in range(1000):
            started.append(subprocess.Popen(["sleep", "60"]))
    finally:
        for process in started:
            process.kill()


for attempt in [metadata_service, set_uid_program, disk_device, thousand_processes]:
    try:
        attempt()
        outcome = "SUCCEEDED"
    except OSError as error:
        outcome = error.strerror
    print(attempt.__name__.replace("_", " ") + ":", outcome)
