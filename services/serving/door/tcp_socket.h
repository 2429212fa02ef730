// A TCP connection's socket: reads the kernel's counts of it, and ends it.
//
// Thread safety: functions without state. Ownership: the descriptor stays the caller's.
#ifndef HEARTH_SERVICES_SERVING_DOOR_TCP_SOCKET_H_
#define HEARTH_SERVICES_SERVING_DOOR_TCP_SOCKET_H_

#include "services/serving/door/connection_ledger.h"

namespace hearth {

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
