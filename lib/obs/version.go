package obs

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

// version and commit are set by who builds without a repository at hand, as an image is built:
// -ldflags "-X tendril.dev/lib/obs.version=v1.2.3 -X tendril.dev/lib/obs.commit=0123456789ab".
var version, commit string

// Version says what was built: "v1.2.3", or "devel" with the commit.
func Version() string {
	if version == "" && commit == "" {
		if info, ok := debug.ReadBuildInfo(); ok && isRelease(info.Main.Version) {
			return info.Main.Version
		}
	}
	return cmp.Or(version, "devel "+Commit())
}

// isRelease reports whether Go took the version from a tag, and did not make it from a commit.
func isRelease(moduleVersion string) bool {
	return semver.IsValid(moduleVersion) && !module.IsPseudoVersion(moduleVersion)
}

// Commit is the first 12 digits of the revision that was built, "+" for uncommitted changes;
// "unknown" if it is.
func Commit() string {
	found := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			found[s.Key] = s.Value
		}
	}
	revision := found["vcs.revision"]
	revision = revision[:min(len(revision), 12)]
	if found["vcs.modified"] == "true" {
		revision += "+"
	}
	return cmp.Or(commit, revision, "unknown")
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
