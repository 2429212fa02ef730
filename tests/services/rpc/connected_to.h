// ConnectedTo and PatientChannel: channels for tests on slow machines, where connecting may take
// longer than the second that a cache waits.
#ifndef HEARTH_TESTS_SERVICES_RPC_CONNECTED_TO_H_
#define HEARTH_TESTS_SERVICES_RPC_CONNECTED_TO_H_

#include <grpcpp/channel.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/rpc/client_access.h"
#include "services/rpc/transport_options.h"

namespace hearth {

inline constexpr int kConnectPatienceMs = 120000;

// Returns a channel that connects at its first use.
inline std::shared_ptr<grpc::Channel> PatientChannel(const std::string& address,
                                                     const ClientAccess& access = {}) {
  grpc::ChannelArguments arguments = ClientTransport(kConnectPatienceMs);
  arguments.SetInt("grpc.use_local_subchannel_pool", 1);
  return *ConnectAs(access, address, arguments);
}

// Returns a channel that is connected already, so that a cache does not find its store unreachable.
inline std::shared_ptr<grpc::Channel> ConnectedTo(const std::string& address,
                                                  const ClientAccess& access = {}) {
  std::shared_ptr<grpc::Channel> channel = PatientChannel(address, access);
  const absl::Time limit = absl::Now() + absl::Milliseconds(kConnectPatienceMs);
  EXPECT_TRUE(channel->WaitForConnected(absl::ToChronoTime(limit))) << address;
  return channel;
}

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_RPC_CONNECTED_TO_H_
