// FakeRedis: a server that speaks Redis's protocol and sends the answers that a test chooses,
// including invalid ones.
//
// Thread safety: the handler runs on the server's thread. The destructor ends the server.
#ifndef HEARTH_TESTS_CACHE_STORE_SHARED_FAKE_REDIS_H_
#define HEARTH_TESTS_CACHE_STORE_SHARED_FAKE_REDIS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cache_store/shared/redis/redis_options.h"

namespace hearth {

class FakeRedis {
 public:
  struct Answer {
    std::string bytes;
    bool closes = false;         // whether to close the connection after these bytes
    bool trickles = false;       // whether to send one byte every 10 ms
    bool ignores_input = false;  // whether to stop reading
  };
  using Words = std::vector<std::string>;
  using Handler = std::function<Answer(const Words&)>;

  // Answers PING and CLIENT like Redis; `handler` answers everything else. `first_words` are sent
  // to each new connection before it sends a command.
  explicit FakeRedis(Handler handler, std::string first_words = "");
  ~FakeRedis();
  FakeRedis(const FakeRedis&) = delete;
  FakeRedis& operator=(const FakeRedis&) = delete;

  const NodeAddress& address() const { return address_; }
  int connections() const { return connections_; }  // number of accepted connections
  int resets() const { return resets_; }            // number of connections that the client reset

  // Returns an answer to CLUSTER SLOTS in which all nodes have equally many slots.
  static std::string Slots(const std::vector<NodeAddress>& nodes);

 private:
  struct Client;
  void Run();
  void Accept();
  bool Serve(Client* client);  // handles received bytes; false: close the connection
  bool Send(Client* client);
  Answer AnswerTo(const Words& words) const;

  const Handler handler_;
  const std::string first_words_;
  NodeAddress address_;
  int listener_ = -1, wake_ = -1;
  std::atomic<int> connections_{0}, resets_{0};
  std::vector<std::unique_ptr<Client>> clients_;
  std::thread thread_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_CACHE_STORE_SHARED_FAKE_REDIS_H_
