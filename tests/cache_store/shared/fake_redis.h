// FakeRedis: a server that speaks Redis's protocol, and answers what a test wants: lies, too.
//
// Thread safety: the handler runs on the server's thread. Ownership: ends with the object.
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
    bool closes = false;         // the connection, after them
    bool trickles = false;       // a byte in 10 ms
    bool ignores_input = false;  // reads nothing more
  };
  using Words = std::vector<std::string>;
  using Handler = std::function<Answer(const Words&)>;

  // Greets as Redis does; everything else is `handler`'s. `first_words` are sent to whoever
  // connects before a word is said.
  explicit FakeRedis(Handler handler, std::string first_words = "");
  ~FakeRedis();
  FakeRedis(const FakeRedis&) = delete;
  FakeRedis& operator=(const FakeRedis&) = delete;

  const NodeAddress& address() const { return address_; }
  int connections() const { return connections_; }  // accepted so far
  int resets() const { return resets_; }            // of those, what the other end cut off

  // An answer to CLUSTER SLOTS: as many equal shares as there are nodes.
  static std::string Slots(const std::vector<NodeAddress>& nodes);

 private:
  struct Client;
  void Run();
  void Accept();
  bool Serve(Client* client);  // false: it is done
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
