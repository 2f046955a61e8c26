package obs

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/pprof"
	"strings"
)

// longestLevel is the longest body of a PUT for /loglevel that is read, in bytes.
const longestLevel = 256

// MountPrivate serves what belongs on a port that only the operator reaches: the profiles of
// /debug/pprof, and the log level at /loglevel. GET tells the level; PUT sets it until the process
// ends or reads its settings again. The body is a level as in NGIT_LOG_LEVEL, like debug.
func MountPrivate(mux *http.ServeMux, level *slog.LevelVar, log *slog.Logger) {
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /loglevel", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, levelName(level.Level()))
	})
	mux.HandleFunc("PUT /loglevel", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, longestLevel+1))
		if err == nil && len(body) > longestLevel {
			err = errors.New("this is too long for a level")
		}
		var wanted slog.Level
		if err == nil {
			wanted, err = ParseLevel(strings.TrimSpace(string(body)))
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		before := level.Level()
		level.Set(wanted)
		log.Warn("the log level was changed", "from", levelName(before), "to", levelName(wanted), "by", r.RemoteAddr)
		fmt.Fprintln(w, levelName(wanted))
	})
}

// levelName is a level as NGIT_LOG_LEVEL has it.
func levelName(l slog.Level) string {
	if l == math.MaxInt {
		return "off"
	}
	return strings.ToLower(l.String())
}
