package graytag

import "context"

type Tag struct{}

func NewContext(ctx context.Context, t Tag) context.Context { return ctx }
func FromContext(ctx context.Context) Tag                   { return Tag{} }
