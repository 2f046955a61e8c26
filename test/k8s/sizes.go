package main

import (
	"context"
	"errors"
)

func (r *run) sizes(ctx context.Context) error { return errors.Join(ctx.Err()) }
