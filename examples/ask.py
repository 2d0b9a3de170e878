"""Sends a request, and prints the answer or what was wrong: python3 ask.py METHOD URL"""

import sys
import urllib.error
import urllib.request

method, url = sys.argv[1:]
try:
    print(urllib.request.urlopen(urllib.request.Request(url, method=method)).read().decode().strip())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode().strip())
except OSError as error:
    print(getattr(error, "reason", error))
