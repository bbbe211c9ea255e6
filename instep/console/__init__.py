"""`instep console`: the pipelines, their documents and the cluster in a browser.

The console holds no logic of its own: its pages call what the commands call. Nothing is kept
beside the target databases, except the samples of the last hour, which live in memory.
"""
