//! What an IoThread runs: rings, devices and engines in five phases.
