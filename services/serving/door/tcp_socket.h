// A TCP connection's socket: what the kernel counts of it, and its end.
//
// Thread safety: functions without state. Ownership: the descriptor stays the caller's.
#ifndef HEARTH_SERVICES_SERVING_DOOR_TCP_SOCKET_H_
#define HEARTH_SERVICES_SERVING_DOOR_TCP_SOCKET_H_

#include "services/serving/door/connection_ledger.h"

namespace hearth {

// Bytes received, sent and unread; zeros for what is no TCP socket.
ConnectionLedger::Counted CountedOfSocket(int fd);

// Shuts both ways. Whoever has a duplicate sees the end, and nothing of what it has not read yet.
void CutSocket(int fd);

void SetOn(int fd, int level, int option);

// Whether accept said so of one connection, or of none: then the next one may be asked for at once.
// Else it is the process or the machine that lacks something, and the listener stays ready.
bool IsOfOneConnection(int error);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_DOOR_TCP_SOCKET_H_
