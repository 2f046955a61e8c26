package obs

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// version and commit are set by who builds without a repository at hand, as an image is built:
// -ldflags "-X tendril.dev/lib/obs.version=v1.2.3 -X tendril.dev/lib/obs.commit=0123456789ab".
var version, commit string

// Version says what was built: the version where it has one, else the revision, as they were given
// to the Go linker or as it found them.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return versionOf(info, version, commit)
}

// versionOf is "v1.2.3", or "devel" with the revision, "+" for uncommitted changes. What is given
// comes before what info says.
func versionOf(info *debug.BuildInfo, version, commit string) string {
	if version != "" {
		return version
	}
	if v := info.Main.Version; commit == "" && v != "" && v != "(devel)" {
		return v
	}
	if commit == "" {
		commit = commitOf(info)
	}
	return strings.TrimSpace("devel " + commit)
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

// Commit is the first 12 digits of the revision that was built, "+" for uncommitted changes;
// "unknown" if it is.
func Commit() string {
	if info, ok := debug.ReadBuildInfo(); ok && commit == "" {
		return cmp.Or(commitOf(info), "unknown")
	}
	return cmp.Or(commit, "unknown")
}

// BuildInfo is the metric ngit_build_info: always 1, with what was built as labels.
func BuildInfo() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ngit_build_info", Help: "What was built: always 1.",
		ConstLabels: prometheus.Labels{"version": Version(), "commit": Commit(), "goversion": runtime.Version()},
	}, func() float64 { return 1 })
}

// Uptime is the metric ngit_uptime_seconds of a process that started at start.
func Uptime(start time.Time) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "ngit_uptime_seconds", Help: "Seconds since the process started.",
	}, func() float64 { return time.Since(start).Seconds() })
}
