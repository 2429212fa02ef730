// FlagSet: reads the flags of hearth-store or hearth-worker from the command line, the environment
// and a file. The command line overrides the environment, and the environment overrides the file.
//
// Each flag --some-name is also HEARTH_STORE_SOME_NAME (or HEARTH_WORKER_...) in the environment
// and some-name = "..." in the TOML or INI file of --config. Thread safety: none; used by main
// before threads start.
#ifndef HEARTH_SERVICES_SERVING_FLAGS_H_
#define HEARTH_SERVICES_SERVING_FLAGS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/serving/logging.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace hearth {

// Parses "512MiB", "4GiB", "1.5GB" or "4096" to bytes. kInvalidArgument names valid forms.
absl::StatusOr<uint64_t> ParseByteSize(absl::string_view text);
std::string FormatByteSize(uint64_t bytes);

// Flags for TLS and for the authentication of callers (server_access.h).
struct AccessFlags {
  std::string tls_cert, tls_key, tls_client_ca;
  std::string identities_file;
  bool plaintext_tokens = false;
};

// The flags that hearth-store and hearth-worker have in common.
struct ServerFlags {
  std::string listen;
  std::string address_file;
  std::string metrics_listen;
  std::string metrics_address_file;
  std::string metrics_hosts;  // comma-separated host names
  bool show_prompt_text = false;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
  absl::Duration drain_timeout = absl::Seconds(60);
  uint32_t max_connections = 512;
  uint64_t unfinished_bytes = uint64_t{128} << 20;
  AccessFlags access;
  // One sentence for each environment variable that looks like a misspelt flag.
  std::vector<std::string> mistyped_variables;
};

class FlagSet {
 public:
  // `program`: its name, "hearth-store". `environment`: prefix of the variables, "HEARTH_STORE_".
  // `examples`: text at the end of the help. `built_with`: a line that --version prints after the
  // version and the commit.
  FlagSet(const std::string& program, const std::string& environment, const std::string& about,
          const std::string& examples, const std::string& built_with = "");
  ~FlagSet();

  void AddText(const std::string& name, std::string* value, const std::string& help);
  // Adds a flag without which Parse fails.
  void AddRequired(const std::string& name, std::string* value, const std::string& help);
  void AddBytes(const std::string& name, uint64_t* value, const std::string& help);
  void AddDuration(const std::string& name, absl::Duration* value, const std::string& help);
  // Adds a flag with values NAME=TEXT, repeated or separated by commas. Each name may occur once.
  void AddNamed(const std::string& name, std::map<std::string, std::string>* value,
                const std::string& help);
  void AddUint(const std::string& name, uint32_t* value, const std::string& help);
  // Adds a flag whose value is a number from 0 to 1.
  void AddShare(const std::string& name, double* value, const std::string& help);
  // Adds a flag whose value is one of `names`. Stores the index of the name in *value as an enum
  // value.
  template <typename Enum>
  void AddChoice(const std::string& name, Enum* value, const std::vector<std::string>& names,
                 const std::string& help) {
    AddIndex(name, static_cast<size_t>(*value), names, help,
             [value](size_t index) { *value = static_cast<Enum>(index); });
  }
  // Adds the flags of ServerFlags. flags->listen has the default address. Parse sets
  // flags->mistyped_variables.
  void AddServerFlags(ServerFlags* flags);

  // Reads the flags from the command line, the environment and the file of --config. Also handles
  // --man and --reference. Returns true if the program should continue. Returns false if the
  // program should exit with *exit_code: the help, the version, or one line that names the wrong
  // flag was printed.
  bool Parse(int argc, const char* const* argv, int* exit_code);

 private:
  void AddIndex(const std::string& name, size_t index, const std::vector<std::string>& names,
                const std::string& help, std::function<void(size_t)> set);
  std::string UsageError(const std::string& parser_message) const;
  std::vector<std::string> WithEnvironment(int argc, const char* const* argv) const;
  CLI::Option* Described(CLI::Option* option, const std::string& name);

  const std::string environment_;
  const std::unique_ptr<CLI::App> app_;
  std::string page_;  // text of the page to print for --man or --reference
  std::vector<std::string>* mistyped_ = nullptr;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_FLAGS_H_
