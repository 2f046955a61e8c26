package smarthttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"tendril.dev/services/purgatory/packscan"
	"tendril.dev/services/purgatory/repository"
)

const (
	// secretsTime bounds how long a push is looked at closely for secrets, once its pack is
	// checked. What is not looked at by then is let through.
	secretsTime = 20 * time.Second
	// toldSecrets is how many places of secrets a user is told.
	toldSecrets = 10
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

// SecretsFound is why a push is refused that would publish secrets. It says where they are, and has
// none of them.
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
		"If one is no secret, write gitleaks:allow in a comment on its line."
}

func (e *SecretsFound) warning() string {
	return "warning: this push publishes what looks like secrets:\n" + e.list() +
		"Whoever has fetched them keeps them: revoke them, and use new ones.\n" +
		"If one is no secret, write gitleaks:allow in a comment on its line."
}

// watcher is who looks at the objects of the pack as they arrive.
func (p *receiving) watcher() packscan.Watcher {
	if !p.x.options.Secrets.on() {
		return nil
	}
	return &p.suspects
}

// findSecrets looks for secrets in what the push brings, if anything in its pack looked like one as
// it arrived. Git checks the pack for it before anybody sees it, and not once more afterwards. A
// *SecretsFound refuses the push. What cannot be looked at is let through, and its user is warned.
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
	tips := newTips(p.request.commands)
	if whole, err := q.Has(ctx, tips); err != nil || !whole {
		p.pack = p.arrived.Reader() // receive-pack says what is missing
		return err
	}
	found, missed := p.secretsIn(ctx, q, tips)
	if found != nil && p.x.options.Secrets == SecretsRefuse {
		p.x.metrics.secrets.WithLabelValues(secretsRefused).Inc()
		return found
	}
	if err := q.Release(); err != nil {
		return err
	}
	p.released, p.pack = true, bytes.NewReader(repository.EmptyPack())
	p.found, p.missed = found != nil, missed != ""
	if found != nil {
		p.warning = found.warning()
	}
	if p.missed {
		p.warning = joinLines(p.warning, "warning: not all of this push was looked at for secrets: "+missed)
	}
	return nil
}

// countSecrets counts a push that was taken.
func (p *receiving) countSecrets() {
	if p.found {
		p.x.metrics.secrets.WithLabelValues(secretsWarned).Inc()
		p.x.log.Info("a push with what looks like secrets was taken")
	}
	if p.missed {
		p.x.metrics.secrets.WithLabelValues(secretsUnknown).Inc()
		p.x.log.Info("a push was taken that was not all looked at for secrets")
	}
}

// undo has what was received for a push that git did not carry out removed with the next prune,
// unless a reference needs it then.
func (p *receiving) undo() {
	if err := p.x.repo.Pool().OrphanOwn(); err != nil {
		p.x.log.Warn("the data of a failed push could not be removed; it is tried again later", "error", err)
	}
}

// isPressing reports whether receive-pack would fail for the same reason, after as long.
func isPressing(err error) bool {
	return errors.Is(err, repository.ErrTooLong) || errors.Is(err, repository.ErrBusy) || errors.Is(err, repository.ErrShare)
}

// secretsIn looks closely at the suspects among the objects of a push. missed says what was not
// looked at, in words for the user.
func (p *receiving) secretsIn(ctx context.Context, q *repository.Quarantine, tips []string) (found *SecretsFound, missed string) {
	ctx, cancel := context.WithTimeoutCause(ctx, secretsTime, errSecretsTime)
	defer cancel()
	look := secretsLook{hits: map[string]hit{}}
	err := look.find(ctx, p.x.repo, q, p.suspects.Offsets())
	if err == nil || len(look.hits) > 0 {
		err = errors.Join(err, look.locate(ctx, q, tips))
	}
	return look.result(), look.missed(err, p.suspects.Dropped())
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
