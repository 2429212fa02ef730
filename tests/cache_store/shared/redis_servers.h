// Real Redis servers started by a test: single servers and clusters.
//
// The server program is the one in Debian's redis-tools (redis-check-rdb is the same program under
// another name), so no daemon needs to be installed. Thread safety: one thread, which must outlive
// the processes.
#ifndef HEARTH_TESTS_CACHE_STORE_SHARED_REDIS_SERVERS_H_
#define HEARTH_TESTS_CACHE_STORE_SHARED_REDIS_SERVERS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/test_folder.h"

namespace hearth {

// A Redis server process on its own ports of 127.0.0.1. It ends when this object is destroyed, or
// when the thread that started it ends.
class RedisProcess {
 public:
  struct Options {
    bool is_cluster = false;
    bool has_tls = false;                    // whether to serve TLS on an additional port
    std::vector<std::string> settings = {};  // further command line arguments
  };

  // Returns whether this machine has the server program; otherwise skip the test.
  static bool IsInstalled();

  // Starts a server, and returns when it answers. `folder` must exist, and only this server may use
  // it.
  RedisProcess(const std::string& folder, Options options);
  ~RedisProcess();
  RedisProcess(const RedisProcess&) = delete;
  RedisProcess& operator=(const RedisProcess&) = delete;

  int port() const { return port_; }
  int tls_port() const { return tls_port_; }
  int bus_port() const { return bus_port_; }
  pid_t pid() const { return pid_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  // Sends a command on a new connection and returns the answer. The elements of an array are joined
  // by blanks. An error begins with "-", even if the server does not answer.
  std::string Ask(const std::vector<std::string>& words) const;

  void Kill();   // kills the process and waits for its end
  void Start();  // starts the process again on the same ports
  void Stop();   // suspends the process: it answers nothing, but its connections stay open
  void Continue();
  bool IsRunning() const { return pid_ > 0; }
  bool IsAnswering() const { return IsRunning() && !is_stopped_; }
  // Waits until the process ends, but at most 10 ms.
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
  bool is_stopped_ = false;
};

// A Redis Cluster of `primaries`, with equally many slots each, and `replicas` for each primary.
// Servers are numbered: first the primaries, then the replicas; replica i follows primary i %
// primaries. A node that does not answer for 30 s counts as failed; see DetectFailuresFast.
class RedisServers {
 public:
  struct Options {
    int primaries = 3;
    int replicas = 0;  // number of replicas of each primary
    bool has_tls = false;
    std::vector<std::string> settings = {};
  };

  // Starts the cluster. Returns when all slots are served and the replicas follow their primaries.
  explicit RedisServers(Options options);

  RedisProcess& at(int number) { return *servers_.at(number); }
  int size() const { return static_cast<int>(servers_.size()); }
  int primaries() const { return options_.primaries; }
  // Returns the addresses of the primaries: "HOST:PORT,...".
  std::string addresses() const;
  // Returns the number of the primary that served `slot` at the start.
  int ShareOf(int slot) const;

  // Adds a primary without slots, which all servers know. Returns its number.
  int AddPrimary();
  // Moves a slot with its keys from one server to another while clients use them.
  void MoveSlot(int slot, int from, int to);
  // From now on, a node that does not answer for 1 s counts as failed. On a busy machine, healthy
  // nodes may then count as failed for a while.
  void DetectFailuresFast() const;
  // Waits until every running server reports that all slots are served.
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
