// repair: a stopped store's data folder whose database is damaged.
#include <string>

#include "absl/time/clock.h"
#include "cache_store/disk/repair/repair.h"
#include "services/hearthctl/command_set.h"
#include "services/hearthctl/json_text.h"
#include "services/hearthctl/stopped_store.h"

namespace hearth {
namespace {

constexpr char kRepairExamples[] =
    R"(  hearthctl repair /var/lib/hearth --dry-run      (what could be saved; changes nothing)
  hearthctl repair /var/lib/hearth                (the store is stopped)
  hearthctl repair /var/lib/hearth --to /mnt/new  (where this disk is full, or fails)
For a folder that a store does not open, or of which one says that restore points are lost: CURRENT
or MANIFEST gone, tables, blob files or logs damaged, cut or moved to lost/. Every file is read;
what its digests prove becomes a new database, which is checked and takes the old one's place at
once. The damaged one is kept beside it. Whenever a repair is stopped, the folder is as it was or
repaired: run it again. Tables in which nothing is wrong are not copied; the rest needs room.
A backup that is not too old may have more: hearthctl restore.
)";

// Often enough to show progress, without flooding the terminal.
constexpr absl::Duration kProgressEvery = absl::Seconds(2);

struct RepairFlags {
  std::string path;
  RepairOptions options;
  bool json = false;
};

Json RepairJson(const RepairReport& report, bool dry_run) {
  Json json{{"path", report.folder},
            {"healthy", report.was_healthy},
            {"repaired", !report.was_healthy && !dry_run},
            {"restore_points", report.restore_points},
            {"lost_points", report.lost_points},
            {"expired_points", report.expired_points},
            {"unnamed_points", report.unnamed_points},
            {"lost", report.lost},
            {"objects", report.objects},
            {"slices", report.slices},
            {"slice_bytes", report.slice_bytes},
            {"damaged_files", report.damaged_files},
            {"damage", report.damage},
            {"linked_bytes", report.linked_bytes},
            {"copied_bytes", report.copied_bytes}};
  if (!report.old_database.empty()) json["old_database"] = report.old_database;
  json["has_secret"] = report.has_secret;
  return json;
}

void PrintList(const std::vector<std::string>& lines, uint64_t count, Console& console) {
  for (const std::string& line : lines) console.out << "  " << line << "\n";
  if (count > lines.size()) console.out << "  and " << count - lines.size() << " more\n";
}

void PrintNext(const RepairFlags& flags, const RepairReport& report, Console& console) {
  if (flags.options.dry_run) {
    console.out << "nothing was changed; without --dry-run this is done, and "
                << SizeText(report.copied_bytes) << " are written\n";
    return;
  }
  if (flags.options.to.empty()) {
    console.out << "the damaged database is kept in " << report.old_database
                << ": start the store, and when all is well: rm -r " << report.old_database << "\n";
  } else {
    console.out << flags.path << " was not changed: start the store with --data-dir "
                << report.folder << "\n";
  }
  if (report.lost_points > 0) {
    console.out << "what was lost is computed and published again when it is asked for\n";
  }
}

void PrintRepair(const RepairFlags& flags, const RepairReport& report, Console& console) {
  const bool dry_run = flags.options.dry_run;
  if (report.was_healthy) {
    console.out << flags.path << ": nothing to repair, " << report.restore_points
                << " restore points, " << SizeText(report.slice_bytes) << " checked\n";
    if (report.lost_points > 0) console.out << "of these no file has anything left:\n";
    PrintList(report.lost, report.lost_points, console);
    console.out << std::flush;
    return;
  }
  if (report.damaged_files > 0) console.out << "damaged:\n";
  PrintList(report.damage, report.damaged_files, console);
  if (report.lost_points > 0) console.out << "lost:\n";
  PrintList(report.lost, report.lost_points, console);
  console.out << report.folder << ": " << report.restore_points << " restore points "
              << (dry_run ? "can be kept, " : "kept, ") << report.lost_points << " lost";
  if (report.expired_points > 0) console.out << ", " << report.expired_points << " expired";
  console.out << "; " << report.objects << " objects, " << report.slices << " slices, "
              << SizeText(report.slice_bytes) << " checked";
  if (report.linked_bytes > 0) {
    console.out << ", of which " << SizeText(report.linked_bytes)
                << " lie in tables that are taken over as they are";
  }
  console.out << "\n";
  if (report.unnamed_points > 0) {
    console.out
        << report.unnamed_points
        << " of them are from lost/ alone and no promise names them, for promises are damaged "
           "or not there: some may have been dropped before\n";
  }
  PrintNext(flags, report, console);
  if (!report.has_secret) {
    console.out << SecretIsNotIn(flags.path)
                << ": start the store with the --secret-file that it had\n";
  }
  console.out << std::flush;
}

int RunRepair(const RepairFlags& flags, Console& console) {
  absl::Time next = absl::Now() + kProgressEvery;
  RepairOptions options = flags.options;
  options.on_progress = [&](const std::string& step) {
    if (absl::Now() < next) return;
    next = absl::Now() + kProgressEvery;
    console.err << "repair: " << step << std::endl;
  };
  const absl::StatusOr<RepairReport> report = RepairDataDir(flags.path, options);
  if (!report.ok()) return Fail(console, report.status());
  if (flags.json) return PrintJson(RepairJson(*report, flags.options.dry_run), console);
  PrintRepair(flags, *report, console);
  return kExitOk;
}

}  // namespace

void AddRepairCommand(CommandSet* commands) {
  const auto [command, flags] = commands->Add<RepairFlags>(
      "repair", "Rebuild a stopped store's damaged data folder from what is still right in it",
      kRepairExamples, RunRepair);
  command->Add("path", &flags->path, "the store's data folder").Required();
  command->Add("--to", &flags->options.to, "a new data folder, instead of the same");
  command->Add("--secret-file", &flags->options.secret_file,
               "the secret, where the store was given one and its record is lost");
  command->AddSwitch("--dry-run", &flags->options.dry_run, "only say what could be kept");
  command->AddJson(&flags->json);
}

}  // namespace hearth
