//! The vhost-user transport: sockets, memory maps, queue start and stop.
