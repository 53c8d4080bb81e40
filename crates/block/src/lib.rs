//! Block nodes, requests, and their way to an engine.
