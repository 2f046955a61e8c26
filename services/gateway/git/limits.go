package git

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/limit"
)

// Limits are what one client may ask of git and of what costs as much: pages and the metrics.
type Limits struct {
	settings config.Front
	atOnce   *limit.Fair
	requests *limit.Rates
	pushed   *limit.Rates // bytes
}

// NewLimits makes the limits that the settings ask for.
func NewLimits(s config.Front) *Limits {
	return &Limits{
		settings: s,
		atOnce:   limit.NewFair(math.MaxInt64, int64(s.GitRequestsPerIP)),
		requests: limit.NewRates(s.GitRequestsPerMinute, time.Minute),
		pushed:   limit.NewRates(s.PushBytesPerHour, time.Hour),
	}
}

// refusal is why a request is not served, in words that git shows, and when it may be made again.
type refusal struct {
	sentence string
	wait     time.Duration
}

// answer refuses with 429. Git shows the text of such an answer as lines that begin with "remote:".
func (f *refusal) answer(w http.ResponseWriter) {
	seconds := int(math.Ceil(max(f.wait, time.Second).Seconds()))
	w.Header().Set("Retry-After", strconv.Itoa(seconds))
	http.Error(w, fmt.Sprintf("rate-limited: %s; try again in %s", f.sentence, time.Duration(seconds)*time.Second), http.StatusTooManyRequests)
}

// admit lets a request of a client in, until leave is called, or says why not.
func (l *Limits) admit(client string, pushes bool) (leave func(), refused *refusal) {
	if refused := l.tooMany(client); refused != nil {
		return nil, refused
	}
	if pushes {
		if ok, wait := l.pushed.Left(client); !ok {
			return nil, l.tooMuch(wait)
		}
	}
	leave, err := l.atOnce.Try(client, 1)
	if err != nil {
		return nil, &refusal{fmt.Sprintf("at most %d git requests at once from one address", l.settings.GitRequestsPerIP), 5 * time.Second}
	}
	return leave, nil
}

// tooMany counts a request, or says why it is one too many.
func (l *Limits) tooMany(client string) *refusal {
	if ok, wait := l.requests.Allow(client); !ok {
		return &refusal{fmt.Sprintf("at most %d requests for git data and pages a minute from one address", l.settings.GitRequestsPerMinute), wait}
	}
	return nil
}

func (l *Limits) tooMuch(wait time.Duration) *refusal {
	return &refusal{fmt.Sprintf("at most %d bytes an hour are taken from one address", l.settings.PushBytesPerHour), wait}
}

// Page counts a request for a page, or for the metrics. If it is one too many, it answers and
// returns false.
func (l *Limits) Page(w http.ResponseWriter, client string) bool {
	refused := l.tooMany(client)
	if refused != nil {
		refused.answer(w)
	}
	return refused == nil
}

// errSpent ends a push whose client has used up what it may push.
var errSpent = errors.New("the client has pushed as much as it may")

// metered is the body of a push, counted.
type metered struct {
	io.ReadCloser
	spend func(n int) bool
}

// Read reads some of the body. What is too much is not passed on: it could be the end of the push,
// which the worker would take before it hears that the push was ended.
func (m *metered) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	if n > 0 && !m.spend(n) {
		return 0, errSpent
	}
	return n, err
}
