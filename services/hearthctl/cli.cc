#include "services/hearthctl/cli.h"

#include <CLI/CLI.hpp>

#include "services/hearthctl/command_set.h"
#include "services/version.h"

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
2 the command line was wrong.
)";

}  // namespace

int RunHearthctl(int argc, const char* const* argv, Console& console) {
  CLI::App app(kAbout, "hearthctl");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string(kVersion));
  CommandSet commands(&app);
  AddGenerateCommand(&commands);
  AddChatCommand(&commands);
  AddTokenizeCommand(&commands);
  AddWarmCommand(&commands);
  AddExplainCommand(&commands);
  AddStatsCommand(&commands);
  AddListCommand(&commands);
  AddPinCommands(&commands);
  AddDropCommand(&commands);
  AddWatchCommand(&commands);
  AddFingerprintCommand(&commands);
  AddExportCommand(&commands);
  AddImportCommand(&commands);
  AddInspectCommand(&commands);
  AddVerifyCommand(&commands);
  AddDiffCommand(&commands);
  AddSimulateCommand(&commands);
  AddBackupCommands(&commands);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // --help and --version come here too, with the code 0.
    return app.exit(error, console.out, console.err) == 0 ? kExitOk : kExitUsage;
  }
  return commands.RunChosen(console);
}

}  // namespace hearth
