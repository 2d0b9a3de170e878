"""Code that keeps its state, in an image with the code interpreter."""

import sys

from sandboxctl import Sandbox

image = sys.argv[1] if len(sys.argv) > 1 else "sandboxctl-e2b-code-interpreter:latest"
with Sandbox.create(image=image, ports=[49999], processes="kept") as sandbox:
    run_code = sandbox.interpreter.run_code
    run_code("rows = [1, 2, 3]")
    ran = run_code("print('counted', len(rows)); sum(rows)")
    print(ran.stdout, end="")
    print(ran.text)
    figure = run_code("import matplotlib.pyplot as plt; plt.plot(rows); plt.show()")
    print(sorted(figure.values[0].formats))
