"""The process that enforces a network list: started, told what to do, and listened to."""
