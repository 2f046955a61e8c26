package limit

import (
	"log/slog"
	"time"
)

// Met logs which parties meet limits: one line a minute for each party and limit, so that a party
// cannot fill the log.
type Met struct {
	lines *Rates
	log   *slog.Logger
}

// NewMet makes one that writes to a log.
func NewMet(log *slog.Logger) *Met { return &Met{NewRates(1, time.Minute), log} }

// Tell hears that a client has met a limit. where is the part of the service, sentence what the
// client is told.
func (m *Met) Tell(client, where, sentence string) {
	if ok, _ := m.lines.Allow(client + " " + where); ok {
		m.log.Info("a client has met a limit; more of it is told in a minute", "client", client, "at", where, "answer",
			sentence)
	}
}
