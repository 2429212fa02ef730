// backup and restore: a store's data folder, without a server.
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/disk/backup.h"
#include "services/hearthctl/commands.h"
#include "services/hearthctl/json_text.h"

namespace hearth {
namespace {

constexpr char kBackupExamples[] =
    R"(  hearthctl backup --data-dir /var/lib/hearth --to /backup/hearth     (the store is stopped)
  kill -USR1 PID                            (a running one, started with --backup-dir)
Again into the same folder copies only what is new. The secret of the keys goes with it.
)";
constexpr char kRestoreExamples[] =
    R"(  hearthctl restore --from /backup/hearth --data-dir /var/lib/hearth
  hearthctl restore --from /backup/hearth --data-dir /tmp/look --id 2
Every byte is checked first; a damaged backup is refused, and the folder not made.
)";
constexpr char kKeepSecret[] =
    "the secret of the keys is not in it (--secret-file): keep that file too, without it the "
    "folder "
    "cannot be opened";

struct BackupFlags {
  std::string data_dir, folder;
  uint32_t id = 0;
  bool json = false;
};

int RunBackup(const BackupFlags& flags, Console& console) {
  const auto report = BackUpDataDir(flags.data_dir, flags.folder);
  if (!report.ok() && absl::StrContains(report.status().message(), "held by another process")) {
    return Fail(console, absl::FailedPreconditionError(
                             absl::StrCat(report.status().message(),
                                          "; a running store that was started with "
                                          "--backup-dir copies itself: kill -USR1 PID")));
  }
  if (!report.ok()) return Fail(console, report.status());
  if (flags.json) {
    return PrintJson({{"id", report->id},
                      {"bytes", report->bytes},
                      {"new_bytes", report->new_bytes},
                      {"has_secret", report->has_secret}},
                     console);
  }
  console.out << flags.folder << ": backup " << report->id << ", " << SizeText(report->bytes)
              << ", of which " << SizeText(report->new_bytes) << " copied now\n";
  if (!report->has_secret) console.out << kKeepSecret << "\n";
  console.out << std::flush;
  return kExitOk;
}

int RunRestore(const BackupFlags& flags, Console& console) {
  const auto report = RestoreDataDir(flags.folder, flags.data_dir, flags.id);
  if (!report.ok()) return Fail(console, report.status());
  const VerifyReport& verified = report->verified;
  if (flags.json) {
    return PrintJson({{"id", report->id},
                      {"restore_points", verified.restore_points},
                      {"slices", verified.slices},
                      {"slice_bytes", verified.slice_bytes},
                      {"problem_count", verified.problem_count},
                      {"has_secret", report->has_secret}},
                     console);
  }
  console.out << flags.data_dir << ": backup " << report->id << " restored, "
              << verified.restore_points << " restore points, " << SizeText(verified.slice_bytes)
              << " checked\n";
  if (!verified.ok()) {
    console.out << verified.problem_count
                << " objects had rotted before they were backed up; they are not served\n";
  }
  if (!report->has_secret) console.out << kKeepSecret << "\n";
  console.out << std::flush;
  return kExitOk;
}

}  // namespace

void AddBackupCommands(CommandLine* line) {
  const auto [command, backup] = line->Add<BackupFlags>(
      "backup", "Copy a stopped store's data folder", kBackupExamples, RunBackup);
  command->add_option("--data-dir", backup->data_dir, "the store's data folder")->required();
  command->add_option("--to", backup->folder, "the backup folder")->required();
  AddJson(command, &backup->json);

  const auto [other, restore] = line->Add<BackupFlags>(
      "restore", "Make a data folder from a backup", kRestoreExamples, RunRestore);
  other->add_option("--from", restore->folder, "the backup folder")->required();
  other->add_option("--data-dir", restore->data_dir, "the data folder to be made")->required();
  other->add_option("--id", restore->id, "which backup (default: the newest)");
  AddJson(other, &restore->json);
}

}  // namespace hearth
