"""Program of a worker process, which `workers/adapters/process` starts: imports `app/worker` without the garbage collector."""

from control_plane.host.memory.garbage import collect_no_garbage_in_forks, garbage_collector_paused

collect_no_garbage_in_forks()
with garbage_collector_paused():
    from control_plane.app.worker import main

if __name__ == "__main__":
    main()
