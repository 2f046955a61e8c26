package purgatory

import (
	"encoding/json"
	"errors"

	"tendril.dev/proto"
)

// someObjects is how many object ids a notice names: it is for people.
const someObjects = 5

// tell publishes what happened to the git data of an identifier, for those who watch.
func (w *notices) tell(identifier string, verb proto.GitVerb, n proto.GitNotice) {
	n.Identifier = identifier
	subject, err := proto.GitSubject(identifier, verb)
	data, failed := json.Marshal(n)
	if err = errors.Join(err, failed); err == nil {
		err = w.node.Bus.Conn.Publish(subject, data)
	}
	if err != nil {
		w.log.Debug("notice not published", "subject", subject, "error", err)
	}
}

func some(ids []string) []string { return ids[:min(len(ids), someObjects)] }
