"""A workflow step: writes a file, and runs a script on it. The files stay in `out`."""

from sandboxctl import Sandbox

TOTAL = 'local n = 0 for line in io.lines("prices.csv") do n += tonumber(line:match(",(%d+)")) end return n'
with Sandbox.create(io_dir="out") as step:
    step.files.write("prices.csv", "apple,2\npear,3\n")
    print("total:", step.run_script(TOTAL, check=True).result)
