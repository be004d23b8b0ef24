"""The processes of a run.

supervisor is a rank's own process; identity says who it is, store opens its store. On rank 0 leader and coordinator
lead; on the others participant follows; run_context holds what a rank has for its whole run. They wait in event_loop,
communicate through store_client (memory_store without torch) under the keys of store_keys, agree on members in
membership, watch each other in heartbeat, and end in shutdown with the verdict (verdict.py).
worker measures; worker_slot starts, limits and replaces it; judge has the process that judges; every child has child,
channel and breadcrumb. process_group belongs to the worker; local_launch starts ranks if no launcher has.
"""
