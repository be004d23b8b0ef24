"""The processes of a run.

supervisor is a rank's own process; identity says who it is, store opens its store. On rank 0 leader and coordinator
lead, participant follows. They wait in event_loop, speak through store_client (memory_store without torch) under the
keys of store_keys, agree on members in membership, watch each other in heartbeat and end in shutdown. worker measures;
worker_slot starts, bounds and replaces it; child, channel and breadcrumb are what any child has. process_group is the
worker's, local_launch starts ranks where no launcher has.
"""
