// A TCP connection's socket: reads the kernel's counts of it, and ends it.
//
// Thread safety: functions without state. Ownership: the descriptor stays the caller's.
#ifndef HEARTH_SERVICES_SERVING_DOOR_TCP_SOCKET_H_
#define HEARTH_SERVICES_SERVING_DOOR_TCP_SOCKET_H_

#include <sys/socket.h>

#include <string>

#include "services/serving/door/connection_ledger.h"

namespace hearth {

// PeerName: a connection's other end as gRPC names it.
//
// A pure function.

// "ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711": the same as a call's, to find its connection.
std::string PeerName(const sockaddr_storage& address);

// Bytes received and sent; zeros when it is no TCP socket.
ConnectionLedger::Counted CountedOfSocket(int fd);

// Shuts both directions. A duplicate of the descriptor sees the end, and no unread bytes.
void CutSocket(int fd);

void SetOn(int fd, int level, int option);

// Whether an error of accept is about one connection, or none was waiting: then accept may be
// called again at once. Else the process or the machine lacks something, and the listener stays
// ready.
bool IsOfOneConnection(int error);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_DOOR_TCP_SOCKET_H_
