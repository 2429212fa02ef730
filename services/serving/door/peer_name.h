// PeerName: a connection's other end as gRPC names it.
//
// A pure function.
#ifndef HEARTH_SERVICES_SERVING_DOOR_PEER_NAME_H_
#define HEARTH_SERVICES_SERVING_DOOR_PEER_NAME_H_

#include <sys/socket.h>

#include <string>

namespace hearth {

// "ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711": the same as a call's, to find its connection.
std::string PeerName(const sockaddr_storage& address);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_DOOR_PEER_NAME_H_
