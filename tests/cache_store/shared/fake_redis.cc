#include "tests/cache_store/shared/fake_redis.h"

#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

constexpr int kSlots = 16384;
constexpr int kTrickleMs = 10;

}  // namespace

struct FakeRedis::Client {
  explicit Client(int accepted) : fd(accepted) {}
  ~Client() { close(fd); }

  const int fd;
  std::unique_ptr<redisReader, void (*)(redisReader*)> reader{redisReaderCreate(), redisReaderFree};
  std::string output;
  bool trickles = false, closes = false, ignores_input = false;
};

FakeRedis::FakeRedis(Handler handler, std::string first_words)
    : handler_(std::move(handler)),
      first_words_(std::move(first_words)),
      listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      wake_(eventfd(0, EFD_CLOEXEC)) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
      listen(listener_, 128) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    std::perror("fake redis");
    std::abort();
  }
  address_ = {"127.0.0.1", ntohs(address.sin_port)};
  thread_ = std::thread([this] { Run(); });
}

FakeRedis::~FakeRedis() {
  eventfd_write(wake_, 1);
  thread_.join();
  close(listener_);
  close(wake_);
}

std::string FakeRedis::Slots(const std::vector<NodeAddress>& nodes) {
  std::string answer = absl::StrCat("*", nodes.size(), "\r\n");
  const int count = static_cast<int>(nodes.size());
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&answer, "*3\r\n:", kSlots * i / count, "\r\n:", kSlots * (i + 1) / count - 1,
                    "\r\n*3\r\n$", nodes[i].host.size(), "\r\n", nodes[i].host,
                    "\r\n:", nodes[i].port, "\r\n$2\r\nid\r\n");
  }
  return answer;
}

void FakeRedis::Run() {
  for (;;) {
    std::vector<pollfd> polled = {{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
    bool trickles = false;
    for (const auto& client : clients_) {
      const bool writes = !client->output.empty() && !client->trickles;
      trickles |= client->trickles;
      const int reads = client->ignores_input ? 0 : POLLIN;
      polled.push_back({client->fd, static_cast<short>(reads | (writes ? POLLOUT : 0)), 0});
    }
    poll(polled.data(), polled.size(), trickles ? kTrickleMs : -1);
    if (polled[0].revents != 0) return;
    for (size_t i = clients_.size(); i-- > 0;) {
      const short events = polled[2 + i].revents;
      resets_ += (events & POLLERR) != 0;
      bool stays = (events & ~POLLOUT) == 0 || Serve(clients_[i].get());
      stays = stays && Send(clients_[i].get());
      if (!stays) clients_.erase(clients_.begin() + static_cast<ptrdiff_t>(i));
    }
    if (polled[1].revents != 0) Accept();
  }
}

void FakeRedis::Accept() {
  const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return;
  ++connections_;
  clients_.push_back(std::make_unique<Client>(fd));
  clients_.back()->output = first_words_;
}

bool FakeRedis::Serve(Client* client) {
  char bytes[4096];
  const ssize_t count = recv(client->fd, bytes, sizeof(bytes), 0);
  if (count <= 0) return false;
  redisReaderFeed(client->reader.get(), bytes, static_cast<size_t>(count));
  void* made = nullptr;
  while (redisReaderGetReply(client->reader.get(), &made) == REDIS_OK && made != nullptr) {
    const std::unique_ptr<redisReply, void (*)(void*)> command(static_cast<redisReply*>(made),
                                                               freeReplyObject);
    Words words;
    for (size_t i = 0; i < command->elements; ++i) {
      words.emplace_back(command->element[i]->str, command->element[i]->len);
    }
    if (client->closes) continue;
    Answer answer = AnswerTo(words);
    client->output += answer.bytes;
    client->trickles |= answer.trickles;
    client->closes |= answer.closes;
    client->ignores_input |= answer.ignores_input;
  }
  return true;
}

bool FakeRedis::Send(Client* client) {
  const size_t count =
      client->trickles ? std::min<size_t>(1, client->output.size()) : client->output.size();
  const ssize_t sent = send(client->fd, client->output.data(), count, MSG_NOSIGNAL);
  if (sent < 0 && errno != EAGAIN) return false;
  if (sent > 0) client->output.erase(0, static_cast<size_t>(sent));
  return !client->closes || !client->output.empty();
}

FakeRedis::Answer FakeRedis::AnswerTo(const Words& words) const {
  if (words[0] == "PING") return {"+PONG\r\n"};
  if (words[0] == "CLIENT") return {"+OK\r\n"};
  return handler_(words);
}

}  // namespace hearth
