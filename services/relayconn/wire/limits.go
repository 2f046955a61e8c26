package wire

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"tendril.dev/lib/nostr"
)

const (
	// A relay is thought to take so many subscriptions, and so many events of a filter, also if it
	// says less: what it does not take it refuses, and that is heeded.
	fewestSubscriptions, fewestEvents = 8, 50
	// filtersPerReq is how many live filters one subscription carries, and bytesPerReq about how
	// long a REQ may become: many relays take no more, and few say what they take. A relay that
	// says how long a REQ may be gets more filters in one.
	filtersPerReq, moreFilters, fewestFilters = 10, 20, 3
	bytesPerReq, fewestBytes, mostBytes       = 64 << 10, 16 << 10, 256 << 10
)

// MostFilters is how many filters one REQ carries at most, also where the relay allows more.
const MostFilters = 64

// Limits is how much a relay lets us ask on one connection. The zero value is of one that has
// refused nothing yet.
type Limits struct {
	said    Stated
	stood   int  // most subscriptions that the relay is known to have had open at once
	refused int  // how many were open when it refused one more; 0: it never did
	form    Form // of a REQ that the relay took after it had refused a larger one
}

// Form is how much one REQ asks for; 0: that is not known.
type Form struct {
	Filters int
	Values  int             // of the longest list of a filter
	Events  int             // of each filter
	Long    nostr.Timestamp // the seconds between since and until
}

// Said notes what the relay says that it takes.
func (a *Limits) Said(limits Stated) { a.said = limits }

// Stood notes that the relay has so many subscriptions open.
func (a *Limits) Stood(open int) { a.stood = max(a.stood, open) }

// Refused notes that the relay takes no more subscriptions while so many are open.
func (a *Limits) Refused(open int) {
	if open = max(open, 1); a.refused == 0 || open < a.refused {
		a.refused = open
	}
}

// TookBack notes that the relay has answered a subscription and refused it then, while so many were
// open: it never had more. strfry sends EOSE before it looks how many there are.
func (a *Limits) TookBack(open int) { a.stood = min(a.stood, open) }

// Probe has a few more subscriptions asked for than the relay took when it refused one.
func (a *Limits) Probe() {
	if a.refused > 0 {
		a.refused += 1 + a.refused/4
	}
}

// Took notes that the relay takes a REQ of that form, and refused a larger one.
func (a *Limits) Took(form Form) {
	a.form = Form{Filters: max(form.Filters, 1), Values: max(form.Values, 1), Events: max(form.Events, 1),
		Long: cmp.Or(form.Long, a.form.Long)}
}

// Values is how many values a filter may name, if not more than most should be.
func (a *Limits) Values(most int) int {
	if a.form.Values > 0 {
		most = min(most, a.form.Values)
	}
	return most
}

// Long is how many seconds a REQ may be about; 0: that is not known.
func (a *Limits) Long() nostr.Timestamp { return a.form.Long }

// room is how many subscriptions the relay takes; 0: that is not known.
func (a *Limits) room() int {
	room := max(a.said.Subscriptions, 0)
	if room > 0 {
		room = max(room, fewestSubscriptions)
	}
	if a.refused > 0 && (room == 0 || a.refused < room) {
		room = a.refused
	}
	if room > 0 {
		room = max(room, a.stood)
	}
	return room
}

// Past is how many historic subscriptions may be open beside so many live ones, if not more than
// most should be. There is always one.
func (a *Limits) Past(live, most int) int {
	if room := a.room(); room > 0 {
		most = min(most, room-live-spare(room))
	}
	return max(most, 1)
}

// Live reports whether there is room for one more live subscription beside so many. A quarter of
// what the relay takes is kept for the past, which would never come otherwise.
func (a *Limits) Live(live int) bool {
	room := a.room()
	return room == 0 || live == 0 || live < room-max(1, room/4)-spare(room)
}

// spare is how many subscriptions are left free, because a relay may take its time to notice that
// we have closed one.
func spare(room int) int { return room / 8 }

// Page is how many events to ask for at once, if not more than most should be.
func (a *Limits) Page(most int) int {
	if a.said.Events > 0 {
		most = min(most, max(a.said.Events, fewestEvents))
	}
	if a.form.Events > 0 {
		most = min(most, a.form.Events)
	}
	return most
}

// Filters is how many filters a subscription may carry.
func (a *Limits) Filters() int {
	switch {
	case a.form.Filters > 0:
		return a.form.Filters
	case a.said.Filters > 0:
		return min(max(a.said.Filters, fewestFilters), MostFilters)
	case a.said.Bytes > bytesPerReq:
		return moreFilters
	}
	return filtersPerReq
}

// Bytes is about how long a REQ may become.
func (a *Limits) Bytes() int {
	if a.said.Bytes > 0 {
		return min(max(a.said.Bytes-a.said.Bytes/10, fewestBytes), mostBytes)
	}
	return bytesPerReq
}

// Together reports whether filters of that many bytes may go in one historic REQ.
func (a *Limits) Together(bytes int) bool { return bytes <= a.Bytes() || a.said.Bytes == 0 }

// Refusal is what a relay means by the text of a CLOSED or a NOTICE.
type Refusal struct {
	Proof   bool // it refuses something to those who have not authenticated (NIP-42)
	Quiet   bool // we ask too much in a time
	Fewer   bool // we have too many subscriptions open
	Smaller bool // one subscription asks for too much
	Shorter bool // so it does, because of its time
	Never   bool // it refuses us, or this request, for good
}

// Relays have words of their own for what they do not take; NIP-01 has only a prefix for one case.
var (
	quiet   = regexp.MustCompile(`(?i)\brate\b|rate.?limit|throttl|too many requests|too fast|slow down`)
	limited = regexp.MustCompile(`(?i)rate.?limit(ed|ing|er)?|too many requests`)
	smaller = regexp.MustCompile(`(?i)filter|too (large|big)|too many (values|ids|tags|kinds|authors|elements)`)
	shorter = regexp.MustCompile(`(?i)\b(range|span|window|interval|period)\b|\b(time|since|until)\b.*\btoo\b|\btoo\b.*\btime\b`)
	open    = regexp.MustCompile(`(?i)\bopen\b`) // filters: subscriptions, in the words of some
	never   = regexp.MustCompile(`(?i)^(restricted|blocked|invalid):`)
	fewer   = regexp.MustCompile(`(?i)too many|maximum|concurrent|\blimit|\breached|exceed|throttl`)
)

// ReadRefusal reads such a text.
func ReadRefusal(text string) Refusal {
	short := shorter.MatchString(text)
	small := short || smaller.MatchString(text) && !open.MatchString(text)
	return Refusal{
		Proof:   strings.HasPrefix(text, "auth-required:"),
		Quiet:   quiet.MatchString(text),
		Fewer:   !small && fewer.MatchString(limited.ReplaceAllString(text, "")),
		Smaller: small, Shorter: short,
		Never: !small && never.MatchString(text),
	}
}

// PolicyCategories are the prefixes (NIP-01, NIP-42) by which relays refuse something for good, and
// "other".
var PolicyCategories = []string{"auth-required", "restricted", "blocked", "invalid", "other"}

// PolicyCategory is which of them a text has.
func PolicyCategory(text string) string {
	prefix, _, _ := strings.Cut(strings.ToLower(text), ":")
	if slices.Contains(PolicyCategories, prefix) {
		return prefix
	}
	return "other"
}
