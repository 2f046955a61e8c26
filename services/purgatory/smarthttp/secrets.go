package smarthttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"tendril.dev/services/purgatory/packscan"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/secrets"
)

const (
	// secretsTime bounds how long the files of a push are looked at for secrets, once its pack is
	// checked. What is not looked at by then is let through.
	secretsTime = 20 * time.Second
	// secretsBytes bounds how much of them is looked at.
	secretsBytes = 128 << 20
	// toldSecrets is how many places of secrets a user is told.
	toldSecrets = 10
	// maxToldPath bounds a path on the user's terminal, in letters.
	maxToldPath = 200
)

// Secrets says what becomes of a push that would publish a secret (NGIT_PUSH_SECRETS).
type Secrets string

// What becomes of a push that would publish a secret.
const (
	SecretsRefuse Secrets = "refuse" // it is refused
	SecretsWarn   Secrets = "warn"   // it is taken, and its user is warned
	SecretsOff    Secrets = "off"    // nobody looks; so is the empty string
)

func (s Secrets) on() bool { return s == SecretsRefuse || s == SecretsWarn }

// SecretsFound is why a push is refused that would publish secrets. The secrets are not in it.
type SecretsFound struct{ places []string }

// Error is one line: how many there are, and where the first is.
func (e *SecretsFound) Error() string {
	if len(e.places) == 1 {
		return "the push would publish a secret: " + e.places[0]
	}
	return fmt.Sprintf("the push would publish %d secrets, such as %s", len(e.places), e.places[0])
}

// list is what a user is told: each place on a line of its own.
func (e *SecretsFound) list() string {
	var b strings.Builder
	for _, place := range e.places[:min(len(e.places), toldSecrets)] {
		b.WriteString("  " + place + "\n")
	}
	if more := len(e.places) - toldSecrets; more > 0 {
		fmt.Fprintf(&b, "  and %d more\n", more)
	}
	return b.String()
}

func (e *SecretsFound) refusal() string {
	return "refused: this push would publish what looks like secrets:\n" + e.list() +
		"Take them out of every commit that has them (git commit --amend, git rebase) and push again.\n" +
		"If it is no secret, write gitleaks:allow in a comment on its line."
}

func (e *SecretsFound) warning() string {
	return "warning: this push publishes what looks like secrets:\n" + e.list() +
		"Whoever has fetched them keeps them: revoke them, and use new ones."
}

// watcher is who looks at the objects of the pack as they arrive.
func (p *receiving) watcher() packscan.Watcher {
	if !p.x.options.Secrets.on() {
		return nil
	}
	return &p.suspects
}

// findSecrets looks for secrets in the files that the push brings, if anything in its pack looked
// like one as it arrived. Git checks the pack for it before anybody sees it, and not once more
// afterwards. A *SecretsFound refuses the push. What cannot be looked at is let through and logged.
func (p *receiving) findSecrets(ctx context.Context) error {
	if !p.x.options.Secrets.on() || len(p.suspects.Offsets()) == 0 {
		return nil
	}
	q, err := p.x.repo.Quarantine(ctx, p.pack, p.x.client(), p.x.options.Patience)
	switch {
	case errors.Is(err, repository.ErrBadPack), err != nil && ctx.Err() == nil && !isPressing(err):
		p.pack = p.arrived.Reader() // receive-pack says what is wrong with it
		return nil
	case err != nil:
		return err
	}
	defer func() {
		if err := q.Drop(); err != nil {
			p.x.log.Warn("a quarantine could not be removed", "error", err)
		}
	}()
	found, err := p.secretsIn(ctx, q)
	if err != nil || p.suspects.Dropped() > 0 {
		p.x.log.Warn("not all of a push could be looked at for secrets", "objects left out", p.suspects.Dropped(), "error", err)
		p.x.metrics.secrets.WithLabelValues(secretsUnknown).Inc()
	}
	if found != nil && p.x.options.Secrets == SecretsRefuse {
		p.x.metrics.secrets.WithLabelValues(secretsRefused).Inc()
		return found
	}
	if p.takeBack, err = q.Release(); err != nil {
		return err
	}
	p.pack = bytes.NewReader(repository.EmptyPack())
	if found != nil {
		p.warning = found.warning()
	}
	return nil
}

// undo removes what was received for a push that git did not carry out, unless a reference needs it
// all the same: a process may have been ended in the middle of its work.
func (p *receiving) undo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), secretsTime)
	defer cancel()
	refs, err := p.x.repo.Refs(ctx)
	if err == nil {
		for _, c := range p.request.commands {
			if !c.Delete() && refs.ByName[c.Name] == c.New {
				return
			}
		}
		err = p.takeBack()
	}
	if err != nil {
		p.x.log.Warn("what was received for a failed push is still there", "error", err)
	}
}

// isPressing reports whether receive-pack would fail for the same reason, after as long.
func isPressing(err error) bool {
	return errors.Is(err, repository.ErrTooLong) || errors.Is(err, repository.ErrBusy) || errors.Is(err, repository.ErrShare)
}

// errMany is a push of which not all suspects are looked at.
var errMany = fmt.Errorf("its files have more than %d bytes", secretsBytes)

// secretsIn looks at the suspects among the objects of a push. With an error, what was found until
// then.
func (p *receiving) secretsIn(ctx context.Context, q *repository.Quarantine) (*SecretsFound, error) {
	ctx, cancel := context.WithTimeout(ctx, secretsTime)
	defer cancel()
	ids, err := q.IDs(ctx, p.suspects.Offsets())
	if err != nil {
		return nil, err
	}
	findings := map[string][]secrets.Finding{}
	var files []string
	var read int64
	err = q.Files(ctx, ids, secrets.MaxContent, func(id string, content []byte) bool {
		if here := secrets.Find(content); len(here) > 0 && findings[id] == nil {
			findings[id] = here
			files = append(files, id)
		}
		read += int64(len(content))
		return read <= secretsBytes
	})
	if err == nil && read > secretsBytes {
		err = errMany
	}
	if len(files) == 0 {
		return nil, err
	}
	paths, failed := q.Paths(ctx, files, newTips(p.request.commands))
	if failed != nil {
		return nil, errors.Join(err, failed)
	}
	var places []string
	for _, id := range files {
		path, visible := paths[id]
		if !visible || !secrets.Ordinary(path) {
			continue
		}
		for _, f := range findings[id] {
			places = append(places, fmt.Sprintf("%s:%d: %s", printable(path), f.Line, f.Rule))
		}
	}
	if len(places) == 0 {
		return nil, err
	}
	slices.Sort(places)
	return &SecretsFound{slices.Compact(places)}, err
}

// newTips are the objects that the references of a push lead to.
func newTips(commands []Command) []string {
	var tips []string
	for _, c := range commands {
		if !c.Delete() {
			tips = append(tips, c.New)
		}
	}
	return tips
}

// printable makes a path fit for a terminal.
func printable(path string) string {
	letters := []rune(strings.ToValidUTF8(path, "?"))
	for i, c := range letters {
		if !unicode.IsPrint(c) {
			letters[i] = '?'
		}
	}
	if len(letters) > maxToldPath {
		return "…" + string(letters[len(letters)-maxToldPath:])
	}
	return string(letters)
}
