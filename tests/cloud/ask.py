#!/usr/bin/env python3
"""HTTP requests from within the namespace: JSON in, a list of {method, url, headers, body}; JSON out, of each its status, headers and text."""
import json
import sys
import urllib.error
import urllib.request

answers = []
for ask in json.load(sys.stdin):
    request = urllib.request.Request(ask["url"], ask["body"].encode() if ask["body"] is not None else None, ask["headers"], method=ask["method"])
    try:
        answer = urllib.request.urlopen(request, timeout=180)
    except urllib.error.HTTPError as e:
        answer = e
    with answer:
        answers.append({"status": answer.status, "headers": {k.lower(): v for k, v in answer.headers.items()}, "text": answer.read().decode(errors="replace")})
json.dump(answers, sys.stdout)
