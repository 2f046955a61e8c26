package obs

import (
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
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

// BuildInfo is the metric ngit_build_info: always 1, with what was built as labels.
func BuildInfo() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ngit_build_info", Help: "What was built: always 1.",
		ConstLabels: prometheus.Labels{"version": Version(), "goversion": runtime.Version()},
	}, func() float64 { return 1 })
}
