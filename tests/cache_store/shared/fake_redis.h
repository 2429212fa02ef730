// FakeRedis: a server that speaks Redis's protocol and gives the answers chosen by a test,
// including invalid ones.
//
// Thread safety: the handler runs on the server's thread. Ownership: the server ends with the
// object.
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
    bool closes = false;         // closes the connection after these bytes
    bool trickles = false;       // sends one byte per 10 ms
    bool ignores_input = false;  // stops reading
  };
  using Words = std::vector<std::string>;
  using Handler = std::function<Answer(const Words&)>;

  // Answers PING and CLIENT like Redis; `handler` answers everything else. `first_words` are sent
  // to each new connection before it sends anything.
  explicit FakeRedis(Handler handler, std::string first_words = "");
  ~FakeRedis();
  FakeRedis(const FakeRedis&) = delete;
  FakeRedis& operator=(const FakeRedis&) = delete;

  const NodeAddress& address() const { return address_; }
  int connections() const { return connections_; }  // accepted so far
  int resets() const { return resets_; }            // connections that the client reset

  // Returns an answer to CLUSTER SLOTS with equal shares for all nodes.
  static std::string Slots(const std::vector<NodeAddress>& nodes);

 private:
  struct Client;
  void Run();
  void Accept();
  bool Serve(Client* client);  // false: close the connection
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
