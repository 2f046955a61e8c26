package obs

import (
	"runtime"
	"runtime/debug"
	"strings"
	"time"

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
	return strings.TrimSpace("devel " + commitOf(info))
}

// commitOf is the first 12 digits of the revision, "+" for uncommitted changes; empty if unknown.
func commitOf(info *debug.BuildInfo) string {
	revision, changed := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value[:min(len(s.Value), 12)]
		case "vcs.modified":
			if s.Value == "true" {
				changed = "+"
			}
		}
	}
	return revision + changed
}

// BuildInfo is the metric ngit_build_info: always 1, with what was built as labels.
func BuildInfo() prometheus.Collector {
	commit := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		commit = commitOf(info)
	}
	if commit == "" {
		commit = "unknown"
	}
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ngit_build_info", Help: "What was built: always 1.",
		ConstLabels: prometheus.Labels{"version": Version(), "commit": commit, "goversion": runtime.Version()},
	}, func() float64 { return 1 })
}

// Uptime is the metric ngit_uptime_seconds of a process that started at start.
func Uptime(start time.Time) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "ngit_uptime_seconds", Help: "Seconds since the process started.",
	}, func() float64 { return time.Since(start).Seconds() })
}
