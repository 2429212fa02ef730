#include "services/hearthctl/cli.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "services/cli/near_words.h"
#include "services/cli/version.h"
#include "services/hearthctl/commands.h"

namespace hearth {
namespace {

constexpr char kAbout[] =
    "Controls Hearth: workers that run Gemma 3, and the store that keeps their prompt prefixes.";

constexpr char kFooter[] = R"(
A first tour, with a worker on its usual port:
  hearthctl generate "Water boils at" --max-new-tokens 16
  hearthctl chat --system "You answer in one sentence."    (each turn reuses the ones before)
  hearthctl explain --prompt-file long.txt                  (what is stored of long.txt)
  hearthctl ls                                              (what the store keeps)

The store keeps a prompt up to each end of a chat turn, breakpoint and whole chunk of 128 tokens.
A shorter text without a breakpoint is computed again each time.

Addresses: --worker ADDR or HEARTHCTL_WORKER, --store ADDR or HEARTHCTL_STORE; each host:port or
unix:PATH.
Servers with authentication: --token-file FILE or HEARTHCTL_TOKEN_FILE. Servers with TLS: --tls-ca
FILE or HEARTHCTL_TLS_CA; with client certificates, also --tls-cert and --tls-key.
With --json each command prints JSON objects, one per line.
Exit codes: 0 done; 1 failed, or a difference was found; 2 wrong usage (a retry fails too); 3 the
server was not reached; 130 interrupted. On failure one line on stderr says what is wrong, where,
and what to do.
)";

// Removed commands, each with the command that replaces it.
constexpr std::pair<const char*, const char*> kMoved[] = {
    {"simulate", "hearth-simulate"},
    {"events", "python -m hearth_cache.events"},
    {"ask", "python -m hearth_cache.ask"},
    {"inspect", "hearthctl verify"},
    {"fingerprint", "hearthctl model"}};

int FailUnknown(Console& console, const std::vector<std::string>& commands,
                const std::string& word) {
  for (const auto& [before, now] : kMoved) {
    if (word != before) continue;
    console.err << "hearthctl: " << word << " was replaced by " << now << std::endl;
    return kExitUsage;
  }
  console.err << "hearthctl: unknown command \"" << word << "\"" << DidYouMean(word, commands)
              << " (hearthctl help lists all commands)" << std::endl;
  return kExitUsage;
}

int RunCommand(std::vector<std::string> words, Console& console) {
  // Accept the words `help`, `help COMMAND` and `version` in addition to the flags.
  if (!words.empty() && words[0] == "help") {
    words.erase(words.begin());
    words.push_back("--help");
  }
  if (words == std::vector<std::string>{"version"}) words = {"--version"};
  CommandLine line({"hearthctl", kAbout, kFooter, kVersionText});
  line.BeginGroup("Ask a worker");
  AddGenerateCommand(&line);
  AddChatCommand(&line);
  AddStateCommands(&line);
  AddTokenizeCommand(&line);
  AddModelCommand(&line);
  line.BeginGroup("Manage a store");
  AddWarmCommand(&line);
  AddExplainCommand(&line);
  AddStatsCommand(&line);
  AddDoctorCommand(&line);
  AddRestorePointCommands(&line);
  AddWatchCommand(&line);
  AddTransferCommands(&line);
  line.BeginGroup("Without a server");
  AddVerifyCommand(&line);
  AddDiffCommand(&line);
  AddBackupCommands(&line);
  AddSelfCommands(&line);
  const std::vector<std::string> names = line.names();
  if (!words.empty() && !absl::StartsWith(words[0], "-") &&
      std::find(names.begin(), names.end(), words[0]) == names.end()) {
    return FailUnknown(console, names, words[0]);
  }
  const std::optional<int> ended = line.Parse(std::move(words), console);
  for (const std::string& mistyped :
       MistypedVariables(environ, "hearthctl", "HEARTHCTL_", line.variables())) {
    console.err << "hearthctl: " << mistyped << std::endl;
  }
  return ended.has_value() ? *ended : line.RunChosen(console);
}

}  // namespace

int RunHearthctl(int argc, const char* const* argv, Console& outside) {
  return RunSafely(outside, [&](Console& console) {
    return RunCommand({argv + 1, argv + argc}, console);
  });
}

}  // namespace hearth
