package obs

import (
	"runtime/debug"
	"strings"
)

// Version says what was built: the module's version where it has one, else the revision, as the Go linker wrote them down.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return versionOf(info)
}

// versionOf is "v1.2.3", or "devel" with the revision, "+" for uncommitted changes.
func versionOf(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	version, changed := "devel", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			version += " " + s.Value[:min(len(s.Value), 12)]
		case "vcs.modified":
			if s.Value == "true" {
				changed = "+"
			}
		}
	}
	return strings.TrimSpace(version + changed)
}
