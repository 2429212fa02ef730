// The commands of hearthctl. Each function adds the commands of one file in commands/: their flags,
// help, examples, and the functions that run them.
//
// Thread safety: none; used by main's thread.
#ifndef HEARTH_SERVICES_HEARTHCTL_COMMANDS_H_
#define HEARTH_SERVICES_HEARTHCTL_COMMANDS_H_

#include <CLI/CLI.hpp>

#include "services/cli/command_line.h"
#include "services/cli/console.h"

namespace hearth {

void AddGenerateCommand(CommandLine* line);
void AddChatCommand(CommandLine* line);
void AddStateCommands(CommandLine* line);
void AddTokenizeCommand(CommandLine* line);
void AddModelCommand(CommandLine* line);

void AddWarmCommand(CommandLine* line);
void AddExplainCommand(CommandLine* line);
void AddStatsCommand(CommandLine* line);
void AddDoctorCommand(CommandLine* line);
void AddRestorePointCommands(CommandLine* line);  // adds the commands ls, pin, unpin and drop
void AddWatchCommand(CommandLine* line);
void AddTransferCommands(CommandLine* line);  // adds the commands export and import

void AddVerifyCommand(CommandLine* line);
void AddDiffCommand(CommandLine* line);
void AddBackupCommands(CommandLine* line);
void AddSelfCommands(CommandLine* line);  // adds the commands completion, man and reference

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_COMMANDS_H_
