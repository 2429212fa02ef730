// The version that servers and hearthctl report.
#ifndef HEARTH_SERVICES_CLI_VERSION_H_
#define HEARTH_SERVICES_CLI_VERSION_H_

namespace hearth {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace hearth

#endif  // HEARTH_SERVICES_CLI_VERSION_H_
