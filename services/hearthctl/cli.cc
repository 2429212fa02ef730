#include "services/hearthctl/cli.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "services/hearthctl/command_set.h"
#include "services/serving/version.h"

namespace hearth {
namespace {

constexpr char kAbout[] =
    "hearthctl talks to Hearth: workers that run Gemma 3, and the store that keeps their prompt "
    "prefixes.";

constexpr char kFooter[] = R"(
A first tour, with a worker on its usual port:
  hearthctl generate --prompt "Water boils at" --max-new-tokens 16
  hearthctl chat --system "You answer in one sentence."    (each turn reuses the ones before)
  hearthctl explain --prompt-file long.txt                  (what is stored of it, or why not)
  hearthctl ls                                              (what the store keeps)

Kept are the ends of chat turns, declared breakpoints and whole chunks of 128 tokens: a short text
without a breakpoint is simply computed again.

Addresses: --worker ADDR or HEARTHCTL_WORKER, --store ADDR or HEARTHCTL_STORE; each host:port or
unix:PATH.
Servers that ask who you are: --token-file FILE or HEARTHCTL_TOKEN_FILE; by TLS: --tls-ca FILE or
HEARTHCTL_TLS_CA, and --tls-cert, --tls-key for a certificate of your own.
With --json each command prints one JSON object a line.
Exit codes: 0 done; 1 the request failed, one line on stderr says what, where and what to do;
2 the command line was wrong (diff: or a file cannot be compared).
)";

// How many letters have to be put in, left out or changed.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

int FailUnknown(Console& console, const std::vector<std::string>& commands,
                const std::string& word) {
  std::vector<std::string> near;
  for (const std::string& name : commands) {
    const size_t near_enough = std::max<size_t>(1, word.size() / 3);
    if (EditDistance(word, name) <= near_enough || absl::StartsWith(name, word))
      near.push_back(name);
  }
  console.err << "hearthctl: there is no command \"" << word << "\"";
  if (!near.empty()) console.err << "; did you mean " << absl::StrJoin(near, " or ") << "?";
  console.err << " (hearthctl help lists them)" << std::endl;
  return kExitUsage;
}

}  // namespace

int RunHearthctl(int argc, const char* const* argv, Console& console) {
  std::vector<std::string> words(argv + 1, argv + argc);
  // `help` and `help COMMAND`, as people type them.
  if (!words.empty() && words[0] == "help") {
    words.erase(words.begin());
    words.push_back("--help");
  }
  CommandLine line({"hearthctl", kAbout, kFooter, kVersion});
  CommandSet commands(&line);
  AddGenerateCommand(&commands);
  AddAskCommand(&commands);
  AddChatCommand(&commands);
  AddStateCommands(&commands);
  AddTokenizeCommand(&commands);
  AddWarmCommand(&commands);
  AddExplainCommand(&commands);
  AddStatsCommand(&commands);
  AddListCommand(&commands);
  AddPinCommands(&commands);
  AddDropCommand(&commands);
  AddWatchCommand(&commands);
  AddFingerprintCommand(&commands);
  AddModelCommand(&commands);
  AddExportCommand(&commands);
  AddImportCommand(&commands);
  AddInspectCommand(&commands);
  AddVerifyCommand(&commands);
  AddDiffCommand(&commands);
  AddSimulateCommand(&commands);
  AddBackupCommands(&commands);
  AddRepairCommand(&commands);
  const std::vector<std::string> names = line.names();
  if (!words.empty() && !absl::StartsWith(words[0], "-") &&
      std::find(names.begin(), names.end(), words[0]) == names.end()) {
    return FailUnknown(console, names, words[0]);
  }
  const std::optional<int> ended = line.Parse(std::move(words), console);
  return ended.has_value() ? *ended : commands.RunChosen(console);
}

}  // namespace hearth
