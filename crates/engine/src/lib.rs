//! Linux AIO and the worker pool: submit I/O to the kernel and reap its completions.
