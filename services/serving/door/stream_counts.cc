#include "services/serving/door/stream_counts.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace hearth {
namespace {

constexpr absl::string_view kTransport = "chttp2 ";  // before a socket's peer, in its name

nlohmann::json Parsed(char* text) {
  const std::unique_ptr<char, void (*)(void*)> owned(text, gpr_free);
  if (text == nullptr) return nullptr;
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// 64-bit numbers are texts in protobuf's JSON.
int64_t NumberIn(const nlohmann::json& object, const char* name) {
  int64_t number = 0;
  if (!object.is_object()) return number;
  const auto it = object.find(name);
  if (it == object.end()) return number;
  if (it->is_number_integer()) return it->get<int64_t>();
  if (it->is_string() && !absl::SimpleAtoi(it->get<std::string>(), &number)) return 0;
  return number;
}

// The part of `object` of that name, or null.
nlohmann::json PartOf(const nlohmann::json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(name);
  return it == object.end() ? nlohmann::json() : *it;
}

}  // namespace

void StreamCounts::ListSockets() {
  sockets_.clear();
  for (const auto& server : PartOf(Parsed(grpc_channelz_get_servers(0)), "server")) {
    ListSocketsOf(NumberIn(PartOf(server, "ref"), "serverId"));
  }
}

// gRPC tells of some hundreds at a time, in the order of their numbers.
void StreamCounts::ListSocketsOf(int64_t server) {
  for (int64_t from = 0;;) {
    const auto listed = Parsed(grpc_channelz_get_server_sockets(server, from, 0));
    const nlohmann::json sockets = PartOf(listed, "socketRef");
    for (const auto& socket : sockets) {
      from = NumberIn(socket, "socketId") + 1;
      const nlohmann::json named = PartOf(socket, "name");
      if (!named.is_string()) continue;
      const std::string name = named.get<std::string>();
      if (!absl::StartsWith(name, kTransport)) continue;
      sockets_[name.substr(kTransport.size())] = NumberIn(socket, "socketId");
    }
    if (sockets.empty() || PartOf(listed, "end").is_boolean()) return;
  }
}

StreamCounts::Counts StreamCounts::Of(const std::string& peer) {
  if (!sockets_.contains(peer) && !std::exchange(is_listed_, true)) ListSockets();
  const auto it = sockets_.find(peer);
  if (it == sockets_.end()) return {};
  const auto socket = PartOf(Parsed(grpc_channelz_get_socket(it->second)), "socket");
  if (!socket.is_object()) {  // an older connection from the same port
    sockets_.erase(it);
    return {};
  }
  const auto data = PartOf(socket, "data");
  // To a server a stream has failed that ended before the answer's status was sent.
  const int64_t failed = std::max<int64_t>(NumberIn(data, "streamsFailed"), 0);
  const int64_t alive =
      NumberIn(data, "streamsStarted") - NumberIn(data, "streamsSucceeded") - failed;
  return {static_cast<uint64_t>(std::max<int64_t>(alive, 0)), static_cast<uint64_t>(failed)};
}

}  // namespace hearth
