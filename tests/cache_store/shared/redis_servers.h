// Real Redis servers of one test's own: single ones, and clusters of them.
//
// The server is the one in Debian's redis-tools (redis-check-rdb is the same program under another
// name), so that no daemon is installed. Thread safety: one thread, which outlives the processes.
#ifndef HEARTH_TESTS_CACHE_STORE_SHARED_REDIS_SERVERS_H_
#define HEARTH_TESTS_CACHE_STORE_SHARED_REDIS_SERVERS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/test_folder.h"

namespace hearth {

// One server on ports of its own of 127.0.0.1. It ends with the object, or with the thread that
// started it.
class RedisProcess {
 public:
  struct Options {
    bool is_cluster = false;
    bool has_tls = false;                    // on a port beside the one without
    std::vector<std::string> settings = {};  // further words of its command line
  };

  // Whether this machine has the server: a test without it is to be skipped.
  static bool IsInstalled();

  // Answers when this returns. `folder` must exist, and is the server's alone.
  RedisProcess(const std::string& folder, Options options);
  ~RedisProcess();
  RedisProcess(const RedisProcess&) = delete;
  RedisProcess& operator=(const RedisProcess&) = delete;

  int port() const { return port_; }
  int tls_port() const { return tls_port_; }
  int bus_port() const { return bus_port_; }
  pid_t pid() const { return pid_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  // Asks over a connection of its own. Arrays are joined by blanks; an error begins with "-", also
  // that of a server that does not answer.
  std::string Ask(const std::vector<std::string>& words) const;

  void Kill();   // and waits for its end
  void Start();  // again, on the same ports
  void Stop();   // it answers nothing, and its connections stay
  void Continue();
  bool IsRunning() const { return pid_ > 0; }
  // Waits until the process ends, 10 ms at most.
  void Pause() const;

 private:
  void ChoosePorts();
  void Spawn();
  bool WaitUntilItAnswers() const;

  const std::string folder_;
  const Options options_;
  int port_ = 0, tls_port_ = 0, bus_port_ = 0;
  pid_t pid_ = -1;
  int pid_fd_ = -1;
};

// A cluster of `primaries` with equal shares of the slots, each with `replicas`. Servers are
// numbered: first the primaries, then the replicas, of which number i follows primary i %
// primaries. A node that does not answer for 1 s is taken to have failed.
class RedisServers {
 public:
  struct Options {
    int primaries = 3;
    int replicas = 0;  // of each
    bool has_tls = false;
    std::vector<std::string> settings = {};
  };

  // All slots are served, and replicas follow, when this returns.
  explicit RedisServers(Options options);

  RedisProcess& at(int number) { return *servers_.at(number); }
  int size() const { return static_cast<int>(servers_.size()); }
  int primaries() const { return options_.primaries; }
  // "HOST:PORT,..." of the primaries.
  std::string addresses() const;
  // The number of the primary that served `slot` at the start.
  int ShareOf(int slot) const;

  // Adds a server without slots, known to all; returns its number.
  int AddPrimary();
  // Moves one slot with its keys from one server to another while clients use them.
  void MoveSlot(int slot, int from, int to);
  // Until every running server that is to know each other says that all slots are served.
  void WaitUntilAllSlotsAreServed() const;

 private:
  int AddServer();
  void Meet(int number);
  void WaitUntilKnown() const;
  void AddReplicas();
  std::string IdOf(int number) const;

  const Options options_;
  TestFolder folder_;
  std::vector<std::unique_ptr<RedisProcess>> servers_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_CACHE_STORE_SHARED_REDIS_SERVERS_H_
