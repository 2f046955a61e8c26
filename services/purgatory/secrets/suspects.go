package secrets

import (
	"bytes"

	"tendril.dev/services/purgatory/packscan"
)

const (
	// maxSuspects is how many objects of one pack are remembered to be looked at.
	maxSuspects = 10_000
	// partBytes is how much of an object is looked at once, and partOverlap how much of that once
	// more with the next part.
	partBytes   = 32 << 10
	partOverlap = maxToken
	// packChecks and partChecks bound the places of a pack, and of a part of an object, that are
	// compared with a rule. What begins like a secret beyond that is a suspect without it.
	packChecks = 5000
	partChecks = 4
)

// Suspects looks at the objects of a pack as they arrive, and remembers which may have secrets:
// files, commits and tags that have some, and deltas that may make such an object. Most packs have
// none, so that nothing more needs to be done about them. It keeps 34 KiB of memory for each pack
// at most, and the places of the objects. The zero value works.
type Suspects struct {
	offsets []int64
	dropped int
	checks  int // places that were compared with a rule

	object  packscan.Object
	part    []byte // of the object: what must be looked at, or was and is kept for the next part
	fresh   bool   // some of the part must be looked at
	format  format // of the object
	later   bool   // the part is not the first one
	suspect bool   // the object may have secrets
}

// Begin implements packscan.Watcher.
func (s *Suspects) Begin(o packscan.Object) bool {
	if o.Kind == packscan.Tree {
		return false
	}
	s.object, s.part, s.fresh, s.format, s.later, s.suspect = o, s.part[:0], false, text, false, false
	return true
}

// Part implements packscan.Watcher.
func (s *Suspects) Part(content []byte) bool {
	if s.part == nil {
		s.part = make([]byte, 0, partOverlap+partBytes)
	}
	if !s.later && len(s.part) == 0 && s.object.Kind != packscan.Delta && formatOf(content) != wide {
		s.look(content) // most files come in one part, which need not be copied
	} else {
		s.collect(content)
	}
	return !s.suspect && s.format != binary
}

// collect puts small parts together, and those that need the end of the part before them.
func (s *Suspects) collect(content []byte) {
	for len(content) > 0 && !s.suspect && s.format != binary {
		n := min(len(content), cap(s.part)-len(s.part))
		s.part = append(s.part, content[:n]...)
		s.fresh, content = true, content[n:]
		if len(s.part) == cap(s.part) {
			s.look(s.part)
		}
	}
}

// End implements packscan.Watcher.
func (s *Suspects) End() {
	if s.fresh {
		s.look(s.part)
	}
	switch {
	case !s.suspect:
	case len(s.offsets) < maxSuspects:
		s.offsets = append(s.offsets, s.object.Offset)
	default:
		s.dropped++
	}
}

// look looks at a part of the object, and keeps its end for the next part.
func (s *Suspects) look(part []byte) {
	s.fresh = false
	if s.suspect || s.format == binary {
		return
	}
	if !s.later {
		s.later = true
		if s.format = formatOf(part); s.format == binary {
			return
		}
	}
	part = s.format.plain(part)
	s.suspect = s.hasSecret(part) || s.object.Kind == packscan.Delta && mayContinue(part)
	s.part = append(s.part[:0], part[max(0, len(part)-partOverlap):]...)
}

// hasSecret reports whether a part may have a secret that begins and ends in it, or a private key
// that begins in it.
func (s *Suspects) hasSecret(part []byte) (is bool) {
	if beginsPEM(part) {
		return true
	}
	rules, left := compiled(), partChecks
	eachRun(part, func(from, to int) bool {
		rules.keywords.each(part[:to], from, func(at int, k keyword) bool {
			for _, i := range k.rules {
				if left == 0 || s.checks == packChecks {
					is = true
					return false
				}
				left--
				s.checks++
				if _, _, is = rules.all[i].find(part, at); is {
					return false
				}
			}
			return true
		})
		return !is
	})
	return is
}

// Offsets are where the objects that need a look begin in the pack, in order.
func (s *Suspects) Offsets() []int64 { return s.offsets }

// Dropped is how many more there are than are remembered.
func (s *Suspects) Dropped() int { return s.dropped }

const (
	// leastRest is how many letters and digits in a row can be the rest of a token, and
	// leastKeyRest how many that of a private key, of which the first line may be there already.
	leastRest    = 16
	leastKeyRest = 40
)

// mayContinue reports whether what a delta adds may make a secret whole of which the base has the
// beginning, such as a placeholder. The rest stands where an addition begins, which is where a line
// begins: many letters and digits in a row, some of each.
func mayContinue(added []byte) bool {
	for len(added) > 0 {
		line, rest, _ := bytes.Cut(added, newline)
		if isRest(line, leastRest) || isRest(bytes.TrimLeft(line, " \t\r\"'`"), leastKeyRest) {
			return true
		}
		added = rest
	}
	return false
}

// isRest reports whether a line begins with that many letters and digits of a secret.
func isRest(line []byte, least int) bool {
	if len(line) < least {
		return false
	}
	digits := 0
	for _, c := range line[:least] {
		if !tokenLetters[c] || c == '.' || c == '~' {
			return false
		}
		if c >= '0' && c <= '9' {
			digits++
		}
	}
	return digits > 0 && digits < least
}
